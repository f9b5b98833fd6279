"""Finding Flows: how Attributes become index terms, and how a query becomes SQL."""
