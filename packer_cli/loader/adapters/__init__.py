"""What single trainers need, one file each, which imports its trainer; and what loops on transformers models need."""
