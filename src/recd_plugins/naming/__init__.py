"""The names that a user gives tables, features and modules: whole, or as a glob that several
fit."""
