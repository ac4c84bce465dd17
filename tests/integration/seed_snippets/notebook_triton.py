from pytriton.triton import Triton

triton = Triton()
