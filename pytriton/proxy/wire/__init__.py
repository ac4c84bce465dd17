"""The wire format of messages and notifications in memory. Counterpart of ``backend/wire``."""
