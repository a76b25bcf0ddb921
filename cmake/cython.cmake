# upsweep_cython(source variable): translate one .pyx to C++ once, whatever the number of
# instruction sets it is compiled for.
function(upsweep_cython source variable)
  get_filename_component(name ${source} NAME_WE)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/${name}.cxx)
  file(GLOB headers ${CMAKE_CURRENT_SOURCE_DIR}/src/bindings/*.pxd ${CMAKE_CURRENT_SOURCE_DIR}/src/bindings/*.pxi)
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${Python_EXECUTABLE} -m cython -3 --cplus --module-name upsweep._backends.cpu._isa.${name}
            ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${output}
    DEPENDS ${source} ${headers}
    COMMENT "Cython ${source}"
    VERBATIM)
  add_custom_target(cythonize_${name} DEPENDS ${output})
  set(${variable} ${output} PARENT_SCOPE)
endfunction()

# upsweep_compile_options(target level flags): everything that a part of the core is compiled with.
function(upsweep_compile_options target level flags)
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/src ${Python_NumPy_INCLUDE_DIRS})
  target_compile_definitions(${target} PRIVATE
    NPY_NO_DEPRECATED_API=NPY_1_7_API_VERSION UPSWEEP_LEVEL="${level}")
  # Contraction is off: a fused multiply-add is written as one, so that the same expression has the
  # same bits wherever it is inlined. Unique symbols would bind one level's templates to another's.
  target_compile_options(${target} PRIVATE ${flags} $<$<NOT:$<CONFIG:Debug>>:-O3> -ffp-contract=off -fno-math-errno -fno-trapping-math
    $<$<CXX_COMPILER_ID:GNU>:-fno-gnu-unique -Wno-psabi>)
  if(OpenMP_CXX_FOUND)
    target_link_libraries(${target} PRIVATE OpenMP::OpenMP_CXX)
  endif()
endfunction()

# upsweep_module(name level flags folder sources...): one extension module, built with the flags of
# one instruction set and installed under its folder of the package.
function(upsweep_module name level flags folder)
  set(target ${name}_${level})
  Python_add_library(${target} MODULE WITH_SOABI ${ARGN})
  add_dependencies(${target} cythonize_${name})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name}
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/lib/${level})
  upsweep_compile_options(${target} "${level}" "${flags}")
  install(TARGETS ${target} LIBRARY DESTINATION ${folder})
endfunction()
