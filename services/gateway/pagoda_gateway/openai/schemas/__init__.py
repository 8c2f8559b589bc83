"""Request bodies as clients send them: types and ranges. The rest is checked in `validation`."""
