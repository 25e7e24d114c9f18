"""Messages on kubelet's two sockets, generated from the .proto files here by `make proto`."""
