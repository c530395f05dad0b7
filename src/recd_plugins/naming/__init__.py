"""How a user names tables, features and modules: by name, or by a glob that several fit."""
