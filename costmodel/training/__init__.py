"""What is trained and how it is laid out: models, ranks, number formats, shardings, designs."""
