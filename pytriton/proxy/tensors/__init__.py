"""Tensors: conversion between arrays and shared memory."""
