"""The application put together: settings, the Faust app, CLI, embedded Kafka, web view."""
