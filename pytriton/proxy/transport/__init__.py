"""The transport: how messages reach the other process. Twin of ``backend/transport``."""
