"""The wire format: what messages and notifications look like in memory. Twin of ``backend/wire``."""
