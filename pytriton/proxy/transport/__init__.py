"""The transport: how messages reach the other process. Counterpart of ``backend/transport``."""
