"""What a run shows and keeps: log, tables, times, pictures, the record that proves its mode."""
