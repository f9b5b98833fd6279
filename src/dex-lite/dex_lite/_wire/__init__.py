"""Translation between the SDK's messages and the machine's structs. The only place that knows both."""
