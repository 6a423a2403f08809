"""How TVM 0.26 spells instructions: tables of decoders. Nothing else may depend on its names."""
