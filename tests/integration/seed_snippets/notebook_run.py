triton.run()
