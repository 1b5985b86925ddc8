// Vectors whose lanes come from two others, at places that the compiler knows.
#pragma once

// GCC before 12 has __builtin_shufflevector under another name, with the places in a vector.
#ifdef __has_builtin
#if __has_builtin(__builtin_shufflevector)
#define ABELE_SHUFFLE(places, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#endif
#endif
#ifndef ABELE_SHUFFLE
#define ABELE_SHUFFLE(places, a, b, ...) __builtin_shuffle(a, b, places{__VA_ARGS__})
#endif
