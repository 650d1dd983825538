"""truedraft: speculative serving that says under which law an answer was sampled."""
