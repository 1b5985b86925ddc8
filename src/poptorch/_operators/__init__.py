"""Operations of the original that programs call inside forward."""
