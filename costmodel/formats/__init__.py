"""Files of our own and of Hugging Face as records, with units at the door."""
