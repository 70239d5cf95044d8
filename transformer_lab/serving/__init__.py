"""A trained run as a service: requests in OpenAI's form, answered side by side."""
