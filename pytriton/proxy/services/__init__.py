"""The service channel: what a worker requests from the server. Twin of ``backend/services``."""
