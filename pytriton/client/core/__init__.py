"""The core of all clients: sans-I/O request logic, shared by the blocking and the asyncio clients."""
