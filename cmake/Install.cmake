# The installed prefix: relocatable, enough to run and to build plugins against.
