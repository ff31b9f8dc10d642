"""`supancl doctor`: is this installation fine, what does this machine have, and what should be changed?"""
