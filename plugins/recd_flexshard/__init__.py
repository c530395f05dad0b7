"""FlexShard: per-row tiers in front of TorchRec's tables, sized by what each row costs where."""
