// Nothing. Meson 1.0 expects one object too many of a library whose number of files is a multiple of unity_size, where
// another library takes its objects: then this is one more file.
namespace zs {}
