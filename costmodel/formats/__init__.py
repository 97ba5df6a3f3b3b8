"""Files of dse and of Hugging Face as records; units are converted here."""
