"""Launch files of any framework: the content of one, and the forms that adapters read and write."""
