"""Forms of torch's functions that do not look at values, for forwards that are captured."""
