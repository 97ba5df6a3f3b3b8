"""Models and their layouts: ranks, number formats, shardings, designs."""
