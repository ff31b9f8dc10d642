"""`supancl doctor`: is this installation fine, how fast is this machine, and what should be changed?"""
