triton.stop()
