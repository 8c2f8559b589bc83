"""LoRA adapters: read from PEFT folders, held in slots beside a decoder's weights."""
