"""The wire format of messages and notifications in memory. Twin of ``backend/wire``."""
