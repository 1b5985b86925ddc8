"""What programs tell the vendor's compiler about operators."""
