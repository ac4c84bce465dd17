"""The service channel, on which a worker sends requests to the server. Counterpart of ``backend/services``."""
