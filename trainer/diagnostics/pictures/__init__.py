"""Pictures of tensors: tiles with captions, heat maps; nothing is computed but colours."""
