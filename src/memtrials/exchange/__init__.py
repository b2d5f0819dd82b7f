"""Results in other tools' formats: taken in under configurations named `imported-NAME`, and written out."""
