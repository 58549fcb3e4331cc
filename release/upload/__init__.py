"""`mindnano publish`: a verified release becomes one commit on Hugging Face."""
