"""Topics → updates: the UpdateMessageQueue of the papers, fed by Kafka."""
