"""Request bodies as clients send them: types and ranges. What needs the model is checked in `validation`."""
