"""The operations of the service: one function per act, with the caller's rights, for every interface."""
