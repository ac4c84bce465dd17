"""The service channel, on which a worker sends requests to the server. Twin of ``backend/services``."""
