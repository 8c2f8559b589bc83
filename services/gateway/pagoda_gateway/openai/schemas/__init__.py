"""Bodies and answers as clients see them: fields, types, ranges. Knows no model and no settings."""
