"""x"""
def read_first_kind(*a): raise NotImplementedError
def write_first_kind(*a): raise NotImplementedError
