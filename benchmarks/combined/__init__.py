"""The papers together: what each addition brings to one model on an emulated cluster."""
