"""What the clients share: conversations with a server, written once for threads and for asyncio."""
