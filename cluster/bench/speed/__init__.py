"""One request at a time: cluster and engine against transformers, and int8 against float32."""
