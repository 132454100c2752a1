"""Programs that a fault run starts as processes and kills."""
